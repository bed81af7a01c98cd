// Translates the lines of its standard input, of HTML, a line each, with the package bergamot-translator, Firefox's engine in WASM.
//
//     node bergamot.mjs PACKAGE MODEL VOCABULARY SHORTLIST < lines
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [place, model, vocabulary, shortlist] = process.argv.slice(2);
const { BatchTranslator, TranslatorBacking } = await import(pathToFileURL(`${place}/translator.js`));
const bytes = (file) => Uint8Array.from(readFileSync(file)).buffer;

class Files extends TranslatorBacking {
  async loadModelRegistery() {
    return [{ from: "en", to: "pt", files: {} }];
  }

  async loadTranslationModel() {
    const config = { "gemm-precision": "int8shiftAlphaAll" };
    return {
      model: bytes(model), shortlist: bytes(shortlist), vocabs: [bytes(vocabulary)], qualityModel: null, config,
    };
  }
}

const translator = new BatchTranslator({ workers: 1, pivotLanguage: null }, new Files({ pivotLanguage: null }));
for (const text of readFileSync(0, "utf8").trimEnd().split("\n")) {
  const answer = await translator.translate({ from: "en", to: "pt", text, html: true });
  console.log(answer.target.text);
}
process.exit(0); // its worker would wait for more
