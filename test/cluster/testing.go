// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// Start starts a cluster for one test and closes it after the test. If the test failed, it
// prints the ends of the programs' logs.
func Start(t testing.TB, opts Options) *Cluster {
	t.Helper()
	c, err := New(t.Context(), opts)
	assert.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the cluster's programs printed:\n%s", c.Logs())
		}
		assert.NoError(t, c.Close())
	})
	return c
}

// RunTests runs a package's tests with one cluster that they share. It sets the pointer
// to the cluster before the first test runs:
//
//	var shared *cluster.Cluster
//
//	func TestMain(m *testing.M) { os.Exit(cluster.RunTests(m, &shared, cluster.Options{})) }
func RunTests(m *testing.M, shared **Cluster, opts Options) int {
	c, err := New(context.Background(), opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*shared = c
	code := m.Run()
	if code != 0 {
		fmt.Fprintf(os.Stderr, "the cluster's programs printed:\n%s", c.Logs())
	}
	if err := c.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}
