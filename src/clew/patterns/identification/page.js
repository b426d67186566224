// Shows the photos whose name or class contains what is typed; the rest works without it.
const field = document.getElementById("search");
if (field) {
  const cards = [...document.querySelectorAll("figure")];
  const found = document.getElementById("found");
  const fold = (text) => text.normalize("NFC").toLowerCase();
  const texts = cards.map((card) => fold(card.dataset.words));
  const search = () => {
    const words = fold(field.value).split(/\s+/).filter(Boolean);
    let count = 0;
    cards.forEach((card, number) => {
      card.hidden = !words.every((word) => texts[number].includes(word));
      count += card.hidden ? 0 : 1;
    });
    document.querySelectorAll("main section:not(.faulty)").forEach((section) => {
      section.hidden = words.length > 0 && !section.querySelector("figure:not([hidden])");
    });
    found.textContent = words.length ? `${count} of ${cards.length} photos` : "";
  };
  field.addEventListener("input", search);
  field.closest("p").hidden = cards.length === 0;
}
