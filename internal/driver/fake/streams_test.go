// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
)

// TestManyStreams opens a thousand streams of one server, which all get the same output and
// leave nothing behind.
func TestManyStreams(t *testing.T) { //nolint:paralleltest // it counts the goroutines of the process
	const count = 1000
	d := faketest.OpenDriver(t, fake.Options{ClusterID: "c", Dir: t.TempDir()})
	uid := uuid.NewUUID()
	if err := faketest.EnsureWithEpoch(t, d, uid, 1); err != nil {
		t.Fatal(err)
	}
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
	if _, err := d.Exec(t.Context(), uid, driver.ExecRequest{Command: []string{"log", "hello"}}); err != nil {
		t.Fatal(err)
	}
	shown.Wait()
	leave()
	all.Wait()
	for deadline := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before+5; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there are %d goroutines, before there were %d", runtime.NumGoroutine(), before)
		}
	}
}
