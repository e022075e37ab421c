// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machines

import (
	"bytes"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/control"
)

// TestClientCredentials checks that the credentials of a machine's client are derived once, unless what
// they derive from has changed, and that those of pods that are gone are forgotten.
func TestClientCredentials(t *testing.T) {
	t.Parallel()
	m := &Machines{Clock: clock.RealClock{}}
	seed := make([]byte, control.SeedBytes)
	m.seed.Store(&seed)
	at := Machine{UID: "vm", Pod: "pod", Nonce: "nonce"}
	derive := func(at Machine) []byte {
		t.Helper()
		c, err := m.clientCredentials(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		return c.Cert
	}
	first := derive(at)
	if !bytes.Equal(first, derive(at)) {
		t.Error("they are derived again")
	}
	edited := at
	edited.Nonce = "edited"
	if bytes.Equal(first, derive(edited)) {
		t.Error("those of another nonce are the same")
	}
	again := derive(at)
	m.Forget(func(pod types.UID) bool { return pod == at.Pod })
	if !bytes.Equal(again, derive(at)) {
		t.Error("those of a pod that is there are forgotten")
	}
	m.Forget(func(types.UID) bool { return false })
	if bytes.Equal(again, derive(at)) {
		t.Error("those of a pod that is gone are kept")
	}
}
