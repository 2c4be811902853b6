"""Networks, and one folder per federated method. What runs here needs torch only where its file says so."""
