// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/test/framework/users"
)

const (
	one types.UID = "uid-1"
	two types.UID = "uid-2"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// atSecond is an instant of a hand-made story.
func atSecond(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }

// handmade has evidence that no environment has made.
type handmade struct{ Evidence }

func newEvidence() handmade {
	return handmade{Evidence{Requested: map[types.UID]users.Requested{one: {Name: "vm-1", AtLeast: 1, AtMost: 1}}}}
}
