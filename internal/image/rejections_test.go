// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"errors"
	"strconv"
	"testing"
	"time"
)

// TestRejectionsEvictOldest checks that a new entry at the limit evicts the oldest only.
func TestRejectionsEvictOldest(t *testing.T) {
	t.Parallel()
	var r rejections
	start := time.Now()
	for n := range maxRejections + 1 {
		r.recordContent(strconv.Itoa(n), "1", start.Add(time.Duration(n)*time.Second), errors.New("no disk"))
	}
	now := start.Add(time.Hour)
	if err := r.findContent("0", "1", now); err != nil {
		t.Errorf("the oldest is kept: %v", err)
	}
	for n := 1; n <= maxRejections; n++ {
		if r.findContent(strconv.Itoa(n), "1", now) == nil {
			t.Fatalf("entry %d is forgotten", n)
		}
	}
}
