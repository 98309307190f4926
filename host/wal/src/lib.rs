//! Durable logs shared by many groups.
