"""How a server is configured: one table of options, four places they come from.

    flags  >  MIST_… environment variables  >  a TOML file  >  defaults

    Config        every setting of `mist serve`, checked against each other; frozen
    load_config   the first three places -> Config, or one clear line (ConfigError)
    OPTIONS       the table: names, help, defaults. The command line, its help and the
                  README's table are made from it, so a new option is one field of Config
    Listen        one listener's URL: tcp://127.0.0.1:1445, wss://[::]:8888, tcp+unix:///run/mist

Plan: `kinds` turns the text of one value into that value, `addresses` does so for what names
a host, `settings` holds the fields, `checks` what they demand of each other, `sources` knows
where a text came from. So a message about a bad value is built in one place, and every
value is text first: the same words mean the same in a flag, a variable and a file.
"""

from mist.config.addresses import SCHEMES, Listen, parse_host, parse_origin
from mist.config.kinds import Kind
from mist.config.options import Option
from mist.config.settings import CONFIG_FILE, OPTIONS, Config
from mist.config.sources import CLIENT_VARIABLES, load_config

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
    "parse_host",
    "parse_origin",
]
