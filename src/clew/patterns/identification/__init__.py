"""What photos show: a folder of them with lists, a page and contact sheets; or one, from near
and far. `results` reads them again, without torch."""
