// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// listen takes a port until the test ends.
func listen(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// startTestManager starts a manager of an API that is never called. It returns when the
// manager runs or, if it must fail, has failed.
func startTestManager(t *testing.T, o *Options, fails bool) error {
	t.Helper()
	mgr, err := createTestManager(t, o)
	if err != nil {
		return err
	}
	return awaitManager(t, mgr, fails)
}

func createTestManager(t *testing.T, o *Options) (ctrl.Manager, error) {
	t.Helper()
	mgr, err := o.createManager(t.Context(), &rest.Config{Host: "127.0.0.1:1"}, ctrl.Options{})
	if err == nil {
		assert.NoError(t, mgr.AddHealthzCheck("ping", healthz.Ping))
	}
	return mgr, err
}

// awaitManager returns when the manager runs or, if it must fail, has failed.
func awaitManager(t *testing.T, mgr ctrl.Manager, fails bool) error {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	up := make(chan struct{})
	assert.NoError(t, mgr.Add(started(up)))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(stop)
	if fails {
		up = nil
	}
	var ended error
	assert.Eventually(t, "the manager runs or fails", func(testing.TB) error {
		select {
		case ended = <-done:
			return nil
		case <-up: // servers are started first
			return nil
		default:
			return errors.New("it does neither")
		}
	})
	return ended
}

type started chan struct{}

func (s started) Start(context.Context) error { close(s); return nil }

// TestDefaultAddressInUse checks that it is skipped, and that an explicit address
// in use is an error.
func TestDefaultAddressInUse(t *testing.T) {
	for name, tc := range map[string]struct {
		flags func(taken string) []string
		env   string
		fails bool
	}{
		"defaults":                  {flags: func(string) []string { return nil }},
		"metrics explicit":          {flags: func(at string) []string { return []string{"--metrics-bind-address=" + at} }, fails: true},
		"health explicit":           {flags: func(at string) []string { return []string{"--health-probe-bind-address=" + at} }, fails: true},
		"health by the environment": {flags: func(string) []string { return nil }, env: "DROVER_HEALTH_PROBE_BIND_ADDRESS", fails: true},
		"both off":                  {flags: func(string) []string { return []string{"--metrics-bind-address=0", "--health-probe-bind-address=0"} }},
	} {
		t.Run(name, func(t *testing.T) {
			o, flags := NewOptions(), pflag.NewFlagSet("test", pflag.ContinueOnError)
			o.MetricsAddress, o.HealthAddress = listen(t), listen(t)
			taken := listen(t)
			if tc.env != "" {
				t.Setenv(tc.env, taken)
			}
			o.AddControllerFlags(flags)
			assert.NoError(t, errors.Join(flags.Parse(tc.flags(taken)), SetFromEnv(flags)))
			err := startTestManager(t, o, tc.fails)
			assert.True(t, errors.Is(err, syscall.EADDRINUSE) == tc.fails && err != nil == tc.fails, "got %v, want that it fails: %t", err, tc.fails)
		})
	}
}

// TestFreeDefaultsAreServed checks that endpoints are served on default addresses
// that are free.
func TestFreeDefaultsAreServed(t *testing.T) {
	o := NewOptions()
	o.MetricsAddress, o.HealthAddress = framework.FreeAddress(t), framework.FreeAddress(t)
	assert.NoError(t, startTestManager(t, o, false))
	for url, want := range map[string]string{"http://" + o.MetricsAddress + "/metrics": "go_goroutines", "http://" + o.HealthAddress + "/healthz": "ok"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		assert.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		assert.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		assert.True(t, err == nil && strings.Contains(string(text), want), "%s answers %.100q, %v", url, text, err)
	}
}

// TestReplicasThatStartTogether creates two replicas on one host before either runs. One must serve the default
// addresses, and the other run without them.
func TestReplicasThatStartTogether(t *testing.T) {
	one, other := NewOptions(), NewOptions()
	one.MetricsAddress, one.HealthAddress = framework.FreeAddress(t), framework.FreeAddress(t)
	other.MetricsAddress, other.HealthAddress = one.MetricsAddress, one.HealthAddress
	var all []ctrl.Manager
	for _, o := range []*Options{one, other} {
		mgr, err := createTestManager(t, o)
		assert.NoError(t, err)
		all = append(all, mgr)
	}
	for _, mgr := range slices.Backward(all) {
		assert.NoError(t, awaitManager(t, mgr, false))
	}
	if one.MetricsAddress == addressOff || one.HealthAddress == addressOff || other.MetricsAddress != addressOff || other.HealthAddress != addressOff {
		t.Errorf("metrics are at %q and %q, health at %q and %q: want them at the first replica", one.MetricsAddress, other.MetricsAddress, one.HealthAddress, other.HealthAddress)
	}
}
