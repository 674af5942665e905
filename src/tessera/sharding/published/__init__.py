"""Published measurements that predictions are held against, each value with the page that it was read from."""
