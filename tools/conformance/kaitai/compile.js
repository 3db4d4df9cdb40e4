// Compiles a Kaitai Struct description to Python code that records the place of every field.
//
//     node compile.js SOURCE.ksy FOLDER      writes FOLDER/gcodec.py
'use strict';
const fs = require('fs');
const path = require('path');
const yaml = require('js-yaml');
const compiler = require('kaitai-struct-compiler');

async function main(source, folder) {
  const description = yaml.load(fs.readFileSync(source, 'utf8'), { filename: source });
  const withPlaces = true;
  const files = await compiler.compile('python', description, null, withPlaces);
  for (const [name, text] of Object.entries(files)) fs.writeFileSync(path.join(folder, name), text);
}

main(...process.argv.slice(2)).catch(error => {
  console.error(error.message || String(error));
  process.exit(1);
});
