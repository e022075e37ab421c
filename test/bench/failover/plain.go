// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/test/framework"
)

// plainVerb makes this program a plain elector.
const plainVerb = "elector"

// leaderMessage is printed by a plain elector that takes part.
const leaderMessage = "the leader is"

// plainMain elects with an unmodified client-go and does nothing else.
func plainMain(ctx context.Context, args []string) error {
	var kubeconfig, lease, identity string
	var s leader.Settings
	flags := pflag.NewFlagSet(plainVerb, pflag.ContinueOnError)
	flags.StringVar(&kubeconfig, "kubeconfig", "", "the cluster")
	flags.StringVar(&lease, "lease-name", "", "name of the Lease")
	flags.StringVar(&identity, "identity", "", "this elector's name")
	addTimeFlags(flags, &s)
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, metav1.NamespaceDefault, lease,
		resourcelock.ResourceLockConfig{Identity: identity}, config, s.Renew)
	if err != nil {
		return err
	}
	return runElector(ctx, lock, s)
}

// runElector returns without an error only if it was stopped.
func runElector(ctx context.Context, lock resourcelock.Interface, s leader.Settings) error {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: s.Lease, RenewDeadline: s.Renew, RetryPeriod: s.Retry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(identity string) { fmt.Println(leaderMessage, identity) },
		},
	})
	if err != nil {
		return err
	}
	elector.Run(ctx)
	if ctx.Err() == nil {
		return errors.New("the Lease was lost")
	}
	return nil
}

// startPlain starts a plain elector in a process of its own.
func startPlain(kubeconfig, lease, identity string, s leader.Settings) (*replica, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := framework.StartProcess(self, append([]string{
		plainVerb, "--kubeconfig=" + kubeconfig, "--lease-name=" + lease, "--identity=" + identity,
	}, timeArgs("", s)...), nil)
	if err != nil {
		return nil, err
	}
	return &replica{Process: p, identity: identity, ready: func() error {
		if p.HasEnded() {
			return errors.New("it has ended")
		}
		if !strings.Contains(p.Output(), leaderMessage) {
			return errors.New("it has seen no leader")
		}
		return nil
	}}, nil
}
