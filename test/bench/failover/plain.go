// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bench"
)

const floorElector = "elector"

// Floors has the elector with which Drover's is compared.
var Floors = map[string]bench.Floor{floorElector: runElector}

// runElector takes part in an election of unmodified client-go and does nothing else. Its arguments are
// the Lease, its identity and the settings. It returns nil only if ctx has ended.
func runElector(ctx context.Context, cfg *rest.Config, args []string) error {
	var s leader.Settings
	if len(args) != 3 {
		return errors.New("an elector takes the name of a Lease, an identity and settings")
	}
	if err := json.Unmarshal([]byte(args[2]), &s); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, metav1.NamespaceDefault, args[0],
		resourcelock.ResourceLockConfig{Identity: args[1]}, cfg, s.Renew)
	if err != nil {
		return err
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: s.Lease, RenewDeadline: s.Renew, RetryPeriod: s.Retry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(string) { bench.SayReady() },
		},
	})
	if err != nil {
		return err
	}
	elector.Run(ctx)
	return assert.ErrorUnless(ctx.Err() != nil, "the Lease was lost")
}
