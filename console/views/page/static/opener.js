// @ts-check
/** Unpacks and starts the scripts of the exported file; its policy allows each by digest. */

(async () => {
  const held = document.getElementById("scripts")?.textContent ?? "";
  const bytes = Uint8Array.from(atob(held), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  for (const [type, text] of JSON.parse(await new Response(plain).text())) {
    const script = document.createElement("script");
    script.type = type;
    script.textContent = text;
    document.head.append(script);
  }
})();
