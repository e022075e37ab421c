// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machines

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
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
		assert.NoError(t, err)
		return c.Cert
	}
	first := derive(at)
	assert.True(t, bytes.Equal(first, derive(at)), "they are derived again")
	edited := at
	edited.Nonce = "edited"
	assert.True(t, !bytes.Equal(first, derive(edited)), "those of another nonce are the same")
	again := derive(at)
	m.Forget(func(pod types.UID) bool { return pod == at.Pod })
	assert.True(t, bytes.Equal(again, derive(at)), "those of a pod that is there are forgotten")
	m.Forget(func(types.UID) bool { return false })
	assert.True(t, !bytes.Equal(again, derive(at)), "those of a pod that is gone are kept")
}

// TestClientCredentialsOfAWrongClock checks that credentials which were derived while this host's clock
// was wrong are replaced once it is right.
func TestClientCredentialsOfAWrongClock(t *testing.T) {
	t.Parallel()
	wrong := clocktesting.NewFakePassiveClock(time.Now().Add(72 * time.Hour))
	m := &Machines{Clock: wrong}
	seed := make([]byte, control.SeedBytes)
	m.seed.Store(&seed)
	at := Machine{UID: "vm", Pod: "pod", Nonce: "nonce"}
	at.Address = serveStatus(t, seed, at)
	used, _, err := m.Sample(t.Context(), []Machine{at})
	assert.True(t, err == nil && len(used) == 0, "with a wrong clock the samples are %v, %v", used, err)
	wrong.SetTime(time.Now())
	used, _, err = m.Sample(t.Context(), []Machine{at})
	assert.True(t, err == nil && len(used) == 1, "with a right clock the samples are %v, %v", used, err)
}

// serveStatus serves the status of a machine that runs, and returns the address.
func serveStatus(t *testing.T, seed []byte, machine Machine) string {
	t.Helper()
	c, err := control.MachineCredentials(seed, nil, string(machine.UID), machine.Nonce, time.Now())
	assert.NoError(t, err)
	cert, err := tls.X509KeyPair(c.Cert, c.Key)
	assert.NoError(t, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"state":"running","startedAt":"2026-01-02T03:04:05Z"}`)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}
