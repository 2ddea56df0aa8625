"""Published figures on the public splits of Gowalla and Yelp 2018."""
