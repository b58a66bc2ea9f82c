// @ts-check
/** Of the page in one file: unpacks the page's scripts and starts them; its policy knows each by its digest. */

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
