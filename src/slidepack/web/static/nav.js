// On a narrow screen the names of the pages scroll sideways: that of the present one is in sight.

const here = document.querySelector(".nav [aria-current]");
if (here) {
  const nav = here.parentElement;
  nav.scrollLeft = here.offsetLeft - nav.offsetLeft - (nav.clientWidth - here.offsetWidth) / 2;
}
