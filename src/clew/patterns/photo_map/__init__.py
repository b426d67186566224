"""A map of photos in two dimensions, where similar ones are close to each other: laid out from
features, kept beside a model, and drawn as a block of a page."""
