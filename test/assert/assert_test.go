// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package assert

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFailedAssertionMeansNotYet(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(t testing.TB) error{
		"error":  func(testing.TB) error { return errors.New("not yet") },
		"Error":  func(t testing.TB) error { t.Error("not yet"); return nil },
		"Errorf": func(t testing.TB) error { t.Errorf("%s yet", "not"); return nil },
		"Fatal":  func(t testing.TB) error { t.Fatal("not yet"); return nil },
		"Fatalf": func(t testing.TB) error { t.Fatalf("%s yet", "not"); return nil },
		"FailNow in a helper": func(t testing.TB) error {
			func() { t.Log("not yet"); t.FailNow() }()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tries := 0
			Eventually(t, "the third try succeeds", func(t testing.TB) error {
				if tries++; tries < 3 {
					return fail(t)
				}
				return nil
			})
			if tries != 3 {
				t.Errorf("%d tries, want 3", tries)
			}
			if err := try(t, fail); err == nil || !strings.Contains(err.Error(), "not yet") {
				t.Errorf("the attempt's error is %v, want what it failed with", err)
			}
		})
	}
}

// TestOtherPanicsPass checks that assertions do not recover panics of the code under test.
func TestOtherPanicsPass(t *testing.T) {
	t.Parallel()
	defer func() {
		if cause := recover(); cause != "a bug" {
			t.Errorf("recovered %v, want the panic of the check", cause)
		}
	}()
	_ = try(t, func(testing.TB) error { panic("a bug") })
}

// TestWaitInCleanup checks that Eventually works in a cleanup, although the test's context has ended.
func TestWaitInCleanup(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() {
		tries := 0
		Eventually(t, "the second try succeeds", func(testing.TB) error {
			if tries++; tries < 2 {
				return errors.New("not yet")
			}
			return nil
		})
	})
}

func TestPollEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cause := errors.New("still wrong")
	err := Poll(ctx, "a thing", func() error { cancel(); return cause })
	if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || !strings.Contains(err.Error(), "a thing") {
		t.Errorf("Poll returned %v, want the end of the context, the last error and the condition", err)
	}
}

func TestPatienceFollowsPressure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		content string
		starved bool
	}{
		"idle":              {"some avg10=0.00 avg60=1.50 avg300=15.15 total=53042892\n", false},
		"busy for a minute": {"some avg10=0.00 avg60=75.50 avg300=15.15 total=53042892\n", true},
		"busy right now":    {"some avg10=63.40 avg60=12.00 avg300=15.15 total=53042892\n", true},
		"another format":    {"what\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "cpu")
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := isStarved(path); got != c.starved {
				t.Errorf("starved is %v, want %v", got, c.starved)
			}
		})
	}
	if !isStarved(filepath.Join(t.TempDir(), "absent")) {
		t.Error("a host without the file does not count as starved")
	}
	if isOver(limit) || !isOver(StarvedLimit+time.Second) {
		t.Error("the limits are not kept")
	}
}
