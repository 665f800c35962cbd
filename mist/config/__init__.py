"""Configuration of a server: one table of options, four sources of values.

    flags  >  MIST_… environment variables  >  a TOML file  >  defaults

    Config        every setting of `mist serve`, validated; frozen
    load_config   the first three sources -> Config, or one clear line (ConfigError)
    OPTIONS       the table: names, help, defaults. The command line, its help and docs/settings.md
                  are made from it, so a new option is one field of Config
    Listen        one listener's URL: tcp://127.0.0.1:1445, wss://[::]:8888, tcp+unix:///run/mist

Plan: `kinds` parses the text of one value, `addresses` that of hosts and listeners, `settings`
holds the fields, `checks` validates them against each other, `config` joins the two, `sources`
knows where a text came from. So a message about a bad value is built in one place, and every
value is text first: the same text means the same in a flag, a variable and a file.
"""

from mist.config.addresses import SCHEMES, Listen, parse_host, parse_origin
from mist.config.config import CONFIG_FILE, OPTIONS, Config
from mist.config.kinds import Kind
from mist.config.options import Option
from mist.config.sources import CLIENT_VARIABLES, load_config, load_with_sources

__all__ = [
    "CLIENT_VARIABLES",
    "CONFIG_FILE",
    "OPTIONS",
    "SCHEMES",
    "Config",
    "Kind",
    "Listen",
    "Option",
    "load_config",
    "load_with_sources",
    "parse_host",
    "parse_origin",
]
