"""Work on several machines: processes that Ray starts and watches, and one view of them all. What
they do is shared by leases (`clew.storage.leases`), so that any may die or join at any time."""
