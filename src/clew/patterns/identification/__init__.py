"""Identify what photos show: a whole folder, with lists, a page and contact sheets, or a single
photo at several scales. `results` reads the lists again, without torch."""
