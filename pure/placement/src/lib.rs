//! The cluster's catalogue and where replicas go.
