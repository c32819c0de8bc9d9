// Writes src/api.ts from the JSON schema that stands on standard input.
import { compile } from "json-schema-to-typescript";
import { readFileSync, writeFileSync } from "node:fs";

const schema = JSON.parse(readFileSync(0, "utf8"));
const types = await compile(schema, "Answers", {
  bannerComment: "// Written by `make page` from src/rolecall/watch/models.py: do not edit.",
  format: true,
  style: { printWidth: 100 },
});
writeFileSync(new URL("src/api.ts", import.meta.url), types);
