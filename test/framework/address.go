// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"k8s.io/apimachinery/pkg/util/rand"

	"cloudnative.tw/drover/test/assert"
)

// FreeAddress returns a loopback address with a free port, chosen as FreePort does.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := FindFreeAddress(t.Context())
	assert.NoError(t, err)
	return address
}

// FindFreeAddress is FreeAddress without a test.
func FindFreeAddress(ctx context.Context) (string, error) {
	port, err := findFreePort(ctx)
	return fmt.Sprintf("127.0.0.1:%d", port), err
}

// FreePort returns a TCP port that is free now on all addresses, IPv4 and IPv6. Nothing
// takes it until it is needed: outgoing connections and a Docker engine that chooses a port
// use the range of ephemeral ports, which begins above, and other tests on this host lease
// ports too, until their process ends. It is for programs that cannot say which port they
// have got.
func FreePort(t testing.TB) int32 {
	t.Helper()
	port, err := findFreePort(t.Context())
	assert.NoError(t, err)
	return port
}

func findFreePort(ctx context.Context) (int32, error) {
	for range 100 {
		port := rand.IntnRange(10_000, 30_000)
		leased, err := leaseName(fmt.Sprintf("port-%d", port))
		if err != nil {
			return 0, err
		}
		if !leased {
			continue
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			return int32(port), listener.Close() //nolint:gosec // below 30,000
		}
	}
	return 0, errors.New("none of 100 ports from 10000 to 30000 is free")
}
