// Builds the page into src/rolecall/watch/static: the same bytes from the same sources.
import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const HERE = dirname(fileURLToPath(import.meta.url));
const STATIC = join(HERE, "../src/rolecall/watch/static");
const MOST_BYTES = 120_000; // gzipped, of all files together

mkdirSync(STATIC, { recursive: true });
await build({
  entryPoints: { app: join(HERE, "src/main.tsx") },
  outdir: STATIC,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022"],
  charset: "utf8",
  legalComments: "eof", // the licences of what is bundled stay
  jsx: "automatic",
  jsxImportSource: "preact",
  logLevel: "warning",
});
copyFileSync(join(HERE, "src/index.html"), join(STATIC, "index.html"));

const sizes = ["index.html", "app.js", "app.css"].map((name) => [
  name,
  gzipSync(readFileSync(join(STATIC, name)), { level: 9 }).length,
]);
const total = sizes.reduce((sum, [, bytes]) => sum + bytes, 0);
console.log([...sizes, ["together", total]].map(([name, n]) => `${name}: ${n} bytes gzipped`).join("\n"));
if (total > MOST_BYTES) {
  console.error(`The page has ${total} bytes gzipped, and may have ${MOST_BYTES}: leave something out.`);
  process.exit(1);
}
