//! What every layout of logs promises. A layout is how a set of logs is opened; each runs every case here.
#![allow(clippy::unwrap_used, reason = "tests")]

mod at_rest;
mod cases;
mod damage;
mod history;
mod layout;

macro_rules! tests {
    ($open:expr; $($module:ident::$case:ident,)+) => {
        $(#[test]
        fn $case() {
            crate::$module::$case(&$open);
        })+
    };
}

/// Makes one test of each case for a layout.
macro_rules! suite {
    ($layout:ident: $open:expr) => {
        mod $layout {
            tests! {
                $open;
                cases::an_append_comes_back_after_a_clean_end,
                cases::overwrites_resets_truncations_and_removals_come_back,
                cases::another_replica_begins_an_empty_log,
                cases::large_entries_fit_whatever_the_segment_size,
                cases::reads_stop_at_their_bounds,
                cases::a_failed_sync_poisons_the_log_and_its_bytes_are_not_trusted_afterwards,
                cases::n1_a_full_disk_stalls_the_log_and_does_not_fail_it,
                cases::n1_a_log_opened_on_a_full_disk_writes_into_its_reserve,
                cases::n1_a_log_opened_on_a_nearly_full_disk_takes_the_room_there_is,
                cases::d8_holes_between_rounds_that_were_never_synced_are_a_torn_tail,
                cases::a_read_only_disk_is_a_clear_error,
                cases::an_idle_group_does_not_hold_segments,
                cases::a_lagging_group_holds_only_the_segments_it_stands_in,
                cases::m1_a_tail_that_is_kept_is_not_written_again,
                cases::recycled_segments_never_give_back_stale_records,
                cases::a_removed_group_stays_removed_while_segments_come_and_go,
                cases::segments_go_together_wherever_the_active_one_ends,
                cases::reading_goes_on_while_collection_moves_entries,
                damage::a_flipped_byte_of_an_entry_damages_its_group_alone,
                damage::m3_a_flipped_record_head_names_its_victim_only,
                damage::m3f_a_flipped_head_in_a_torn_batch_names_its_victim_only,
                damage::m3_any_flipped_byte_damages_at_most_the_group_that_stood_there,
                damage::m3_a_flip_in_the_round_that_frees_a_segment_is_no_torn_tail,
                damage::m3_a_lost_state_leaves_it_open_which_replica_stood_there,
                damage::m3_a_block_with_a_head_and_no_list_bounds_what_is_unknown,
                damage::a_torn_tail_damages_nobody,
                damage::d19_an_entry_may_be_durable_without_the_hard_state_behind_it,
                damage::every_single_flipped_byte_is_survived,
                damage::m3_an_unreadable_block_damages_those_whose_records_stood_there,
                damage::m3_an_unreadable_end_is_not_a_torn_tail,
                damage::m3_a_segment_that_was_cut_short_is_not_a_torn_tail,
                damage::m3a_the_newest_segment_removed_is_damage,
                damage::m3a_a_log_without_its_last_segments_is_damage,
                damage::m3a_the_zeroed_end_of_the_log_is_damage,
                damage::m3b_a_log_put_back_to_an_older_state_is_damage,
                damage::d3g_a_log_that_comes_back_after_another_one_is_whole,
                damage::what_the_mark_does_not_speak_of_may_be_torn,
                damage::m3a_a_mark_that_cannot_be_used_says_nothing,
                damage::d3_a_mark_that_cannot_be_opened_ends_the_opening,
                damage::d8_a_mark_speaks_of_no_round_that_was_not_synced,
                damage::damage_is_remembered_until_it_is_dealt_with,
                damage::a_lost_segment_damages_every_group_that_needs_it,
                at_rest::the_group_that_holds_the_oldest_segment_is_named,
                at_rest::a_flipped_byte_is_found_with_its_place_and_its_victim,
                at_rest::a_torn_tail_is_told_from_damage_and_both_from_a_clean_end,
                at_rest::a_newest_segment_that_is_cut_short_is_a_loss_where_syncs_count,
                at_rest::a_follower_shows_what_comes_once_and_in_order,
                at_rest::a_follower_says_what_was_collected_before_it_looked,
                at_rest::a_follower_waits_for_what_is_half_written,
                at_rest::looking_changes_nothing,
                history::crashes_keep_what_was_synced_and_invent_nothing,
                history::histories_are_deterministic,
            }
        }
    };
}

suite!(disk: crate::layout::Disk);
