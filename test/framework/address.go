// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"net"
	"testing"

	"k8s.io/apimachinery/pkg/util/rand"
)

// FreeAddress returns a loopback address without a listener at the moment.
func FreeAddress(t testing.TB) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String()
}

// FreePort returns a TCP port that is free now on all addresses, IPv4 and IPv6. Nothing
// takes it by chance until it is needed: outgoing connections and a Docker engine that
// chooses a port use the range of ephemeral ports, which begins above.
func FreePort(t testing.TB) int32 {
	t.Helper()
	for range 100 {
		port := rand.IntnRange(10_000, 30_000)
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		return int32(port) //nolint:gosec // below 30,000
	}
	t.Fatal("none of 100 ports from 10000 to 30000 is free")
	return 0
}
