// Makes mist.min.js and its source map of mist.js:
//
//     npm run build --prefix tests/npm
//
// into mist/static, or into the folder that is given. What comes of it is committed, so that mist
// can be installed without Node; a test compares it with what this makes.

import {createHash} from "node:crypto";
import {readFile, writeFile} from "node:fs/promises";
import {basename, dirname, join} from "node:path";
import {fileURLToPath} from "node:url";
import {build} from "esbuild";

const folder = join(dirname(fileURLToPath(import.meta.url)), "..", "..", "mist", "static");
const source = await readFile(join(folder, "mist.js"));
const {version, license} = JSON.parse(await readFile(join(folder, "package.json")));
const digest = createHash("sha256").update(source).digest("hex");

const {outputFiles} = await build({
  absWorkingDir: folder,
  entryPoints: ["mist.js"],
  outfile: "mist.min.js",
  write: false, // the map names its source as it is beside it, wherever it goes
  // By the digest, a server knows whether this is made of the source that it has.
  banner: {js: `/* mist.js ${version}, ${license}; of ${digest} */`},
  minify: true,
  sourcemap: "linked",
  sourceRoot: "",
  target: "es2022", // private members, as in the source
  format: "esm",
  charset: "utf8",
  legalComments: "none",
});

for (const {path, contents} of outputFiles) {
  await writeFile(join(process.argv[2] ?? folder, basename(path)), contents);
}
