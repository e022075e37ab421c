// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// TestDigestOfUserData checks that changed user-data waits for the next pod, also for another process, and
// that what the pod has of it confirms no guess.
func TestDigestOfUserData(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newServer(t, "web")
	s.UserData = driver.NewSecret("#cloud-config\npassword: guessed\n")
	s.reach(t, driver.StateRunning)
	sum := sha256.Sum256([]byte(s.UserData.Reveal()))
	if text := s.pod(t).Annotations[objects.AnnotationSettings]; strings.Contains(text, hex.EncodeToString(sum[:3])) || !strings.Contains(text, "userData") {
		t.Errorf("the pod has the settings %s", text)
	}
	s.d = w.open(t)
	if got := s.reach(t, driver.StateRunning); len(got.Pending) > 0 {
		t.Errorf("another process finds %v pending", got.Pending)
	}
	s.UserData = driver.NewSecret("#cloud-config\npassword: changed\n")
	if got := s.reach(t, driver.StateRunning); !slices.Equal(got.Pending, []string{"userData"}) {
		t.Errorf("after a change %v is pending", got.Pending)
	}
	if got := s.restart(t); len(got.Pending) > 0 {
		t.Errorf("after a restart %v is pending", got.Pending)
	}
	s.deleteAll(t)
}
