"""The only place where work meets machine: prices as arrays over layouts, tasks on streams for one layout."""
