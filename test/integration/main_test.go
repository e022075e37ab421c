// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests Drover end to end on real components: a user applies a
// VirtualMachine to a real kube-apiserver, and Drover runs a server for it, reports its
// state, maintains it and removes it.
//
// Most tests share a cluster and a controller, and have separate namespaces.
// test/outage tests failures around Drover.
package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// environment has one controller for all tests. Its orphan sweep runs often, so that tests
// fail if it touches other servers. It lists the engines only when it starts, so that it
// can detect manual changes only through the engines' events.
var environment *testenv.Environment

// waitForDeletions waits until the VirtualMachines in the last tests' namespaces are gone. A controller
// that is stopped in the middle of a removal may not end in time.
func waitForDeletions() error {
	ctx := context.Background()
	return assert.Poll(ctx, "the VirtualMachines of all tests are gone", func() error {
		all, err := environment.VMsIn(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err == nil && len(all.Items) > 0 {
			err = fmt.Errorf("%d VirtualMachines are left, the first is %s/%s: %s", len(all.Items), all.Items[0].Namespace, all.Items[0].Name, framework.FormatStatus(&all.Items[0]))
		}
		return err
	})
}

func TestMain(m *testing.M) { os.Exit(testenv.RunTests(m, startEnvironment)) }

func startEnvironment() (func() error, error) {
	if _, err := framework.OpenDockerClient(); err != nil {
		return nil, err
	}
	w, stop, err := testenv.NewWithController("--usage-period=2s", "--orphan-grace=2s", "--list-period=1h")
	environment = w
	return func() error { return errors.Join(waitForDeletions(), stop()) }, err
}
