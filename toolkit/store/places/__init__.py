"""Object stores behind one interface: one file each, named in `toolkit.store.address.PLACES`."""
