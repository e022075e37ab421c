// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:debug randseednop=0

package schedules

import (
	"flag"
	"io"
	"os"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

var seedFlag = flag.Uint64("seed", 0, "run this schedule and print its trace")

func TestMain(m *testing.M) {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

func run(t *testing.T, o Options) (result Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		if result, err = Run(o); err != nil {
			t.Fatal(err)
		}
	})
	return result
}

func TestSchedules(t *testing.T) {
	if *seedFlag != 0 {
		r := run(t, Options{Seed: *seedFlag, Trace: io.Writer(os.Stdout)})
		t.Logf("%+v", r)
		for _, v := range r.Violations {
			t.Error(v)
		}
	}
}
