// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// TestBeginChange checks that a call waits for another one about the same server alone, as
// long as its context lasts, and that it has a deadline.
func TestBeginChange(t *testing.T) {
	t.Parallel()
	calls := Calls{Timeout: time.Hour}
	ctx, end, err := calls.BeginChange(t.Context(), "a")
	assert.NoError(t, err)
	_, ok := ctx.Deadline()
	assert.True(t, ok, "the call lacks a deadline")
	_, endOther, err := calls.BeginChange(t.Context(), "b")
	assert.NoError(t, err)
	endOther()
	short, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = calls.BeginChange(short, "a")
	assert.ErrorIs(t, "a call that ends before the other", err, driver.ErrRetry)
	_, _, err = calls.BeginChange(t.Context(), "../x")
	assert.ErrorIs(t, "a call with an invalid UID", err, driver.ErrInvalid)

	next := make(chan error, 1)
	go func() {
		_, endNext, err := calls.BeginChange(t.Context(), "a")
		if err == nil {
			endNext()
		}
		next <- err
	}()
	end()
	assert.NoError(t, assert.Receive(t, "the next call begins", next))
}

// TestLimitKeepsDeadline checks that a deadline of the caller's stays.
func TestLimitKeepsDeadline(t *testing.T) {
	t.Parallel()
	want := time.Now().Add(time.Hour)
	own, cancel := context.WithDeadline(t.Context(), want)
	defer cancel()
	limited, end := (&Calls{Timeout: time.Minute}).Limit(own)
	defer end()
	got, _ := limited.Deadline()
	assert.True(t, got.Equal(want), "the deadline is %v, want %v", got, want)
}

// TestEach checks that no item is left out, not even after the end of the context.
func TestEach(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failed := errors.New("failed")
	results, errs := Each(ctx, 2, []int{1, 2, 3}, func(n int) (int, error) {
		if n == 2 {
			return 0, failed
		}
		return 10 * n, nil
	})
	assert.True(t, slices.Equal(results, []int{10, 0, 30}) && slices.Equal(errs, []error{nil, failed, nil}), "got %v and %v", results, errs)
}

// TestWatches checks that every open watch gets each UID, once if it is slow, and none that it
// does not send, and that it ends when it is shut down.
func TestWatches(t *testing.T) {
	t.Parallel()
	var watches Watches
	uids, done := make(chan types.UID), make(chan bool, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	queue := watches.Open(ctx)
	watches.Notify("a", "b", "theirs", "a")
	go func() {
		Send(ctx, queue, uids, func(uid types.UID) bool { return uid != "theirs" })
		done <- true
	}()
	got := []types.UID{assert.Receive(t, "the first", uids), assert.Receive(t, "the second", uids)}
	slices.Sort(got)
	assert.True(t, slices.Equal(got, []types.UID{"a", "b"}), "got %v, want a and b", got)
	watches.Notify("c")
	if got := assert.Receive(t, "one more", uids); got != "c" {
		t.Errorf("got %s, want c", got)
	}
	watches.ShutDown()
	assert.Receive(t, "the end", done)
	cancel()
	assert.Eventually(t, "the watch is forgotten", func(testing.TB) error {
		return assert.ErrorUnless(watches.queues.Len() == 0, "it is kept")
	})
}
