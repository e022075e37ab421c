// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func TestAdd(t *testing.T) {
	var l Log
	l.Add("a")
	l.Add("b")
	if !slices.Equal(l.Lines, []string{"a", "b"}) {
		t.Error(l.Lines)
	}
}

func TestBetween(t *testing.T) {
	for n, want := range map[int]bool{-1: false, 0: false, 1: true, 9: true, 10: false, 11: false} {
		if got := Between(n); got != want {
			t.Errorf("%d: %v", n, got)
		}
	}
}

func TestFirst(t *testing.T) {
	if n, err := First([]int{-1, 0, 1, 2}); n != 1 || err != nil {
		t.Error(n, err)
	}
	if n, err := Both(); n != 0 || !errors.Is(err, errEmpty) {
		t.Error(n, err)
	}
}

func TestWait(t *testing.T) {
	if got := Wait(false); got != time.Minute {
		t.Error(got)
	}
	_ = Wait(true)
}

func TestSwap(t *testing.T) {
	r, count := NewRange(-2, 2), 0
	r.Swap(&count)
	if r.From != 2 || r.To != -2 {
		t.Errorf("%+v", r)
	}
}
