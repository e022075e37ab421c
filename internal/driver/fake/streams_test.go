// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
	"cloudnative.tw/drover/test/assert"
)

// TestManyStreams opens a thousand streams of one server, which all get the same output and
// leave nothing behind.
func TestManyStreams(t *testing.T) { //nolint:paralleltest // it counts the goroutines of the process
	const count = 1000
	d := faketest.OpenDriver(t, fake.Options{ClusterID: "c", Dir: t.TempDir()})
	uid := uuid.NewUUID()
	assert.NoError(t, faketest.EnsureWithEpoch(t, d, uid, 1))
	before := runtime.NumGoroutine()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var ready, shown, all sync.WaitGroup
	ready.Add(count)
	shown.Add(count)
	for range count {
		all.Go(func() {
			c, err := d.Console(ctx, uid)
			ready.Done()
			if err != nil {
				t.Error(err)
				shown.Done()
				return
			}
			lines := bufio.NewReader(c)
			for line := ""; err == nil && line != "hello\n"; {
				line, err = lines.ReadString('\n')
			}
			shown.Done()
			if _, failed := io.ReadAll(lines); err != nil || !errors.Is(failed, context.Canceled) {
				t.Errorf("it ended with %v and %v", err, failed)
			}
		})
	}
	ready.Wait()
	assert.NoError(t, assert.ErrorOf(d.Exec(t.Context(), uid, driver.ExecRequest{Command: []string{"log", "hello"}})))
	shown.Wait()
	leave()
	all.Wait()
	assert.Eventually(t, "nothing is left", func(testing.TB) error {
		if n := runtime.NumGoroutine(); n > before+5 {
			return fmt.Errorf("there are %d goroutines, before there were %d", n, before)
		}
		return nil
	})
}
