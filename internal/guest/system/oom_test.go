// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestParseKilled checks which records of the kernel's log name a process that was killed for lack of memory.
func TestParseKilled(t *testing.T) {
	t.Parallel()
	const text = "Out of memory: Killed process 123 (my (odd) name) total-vm:1234kB, anon-rss:1kB"
	for record, want := range map[string]Killed{
		"3,512,7654321,-;" + text + "\n":    {123, "my (odd) name"},
		"3,512,7654321,-,caller=T1;" + text: {123, "my (odd) name"},
		"3,512,7,-;Out of memory (oom_kill_allocating_task): Killed process 9 (a) total-vm:1kB": {9, "a"},
		"12,512,7654321,-;" + text: {}, // of a process
		"3,512,7,-;Memory cgroup out of memory: Killed process 9 (a) total-vm:1kB": {},
		"6,512,7,-;oom_reaper: reaped process 123 (a), now anon-rss:0kB":           {},
		"": {},
	} {
		got, ok := parseKilled([]byte(record))
		assert.True(t, got == want && ok == (want != Killed{}), "%q is %+v, %t; want %+v", record, got, ok, want)
	}
}
