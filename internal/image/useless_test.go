// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"errors"
	"strconv"
	"testing"
	"time"
)

// TestUselessEvictsOldest checks that a new entry at the limit evicts the oldest only.
func TestUselessEvictsOldest(t *testing.T) {
	t.Parallel()
	var u uselessContent
	start := time.Now()
	for n := range maxUseless + 1 {
		u.note(strconv.Itoa(n), "1", start.Add(time.Duration(n)*time.Second), errors.New("no disk"))
	}
	now := start.Add(time.Hour)
	if err := u.find("0", "1", now); err != nil {
		t.Errorf("the oldest is kept: %v", err)
	}
	for n := 1; n <= maxUseless; n++ {
		if u.find(strconv.Itoa(n), "1", now) == nil {
			t.Fatalf("entry %d is forgotten", n)
		}
	}
}
