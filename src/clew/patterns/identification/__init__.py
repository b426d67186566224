"""What photos show: a folder of them with lists, a page and contact sheets; or a single one, at
several scales. `results` reads them again, without torch."""
