//! Who a peer is: its certificate's SPIFFE URI.
