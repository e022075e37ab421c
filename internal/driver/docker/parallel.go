// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import "sync"

// eachInParallel calls f for every item, with at most limit calls at once, and
// returns when all have ended.
func eachInParallel[T any](items []T, limit int, f func(i int, item T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, limit)
	for i, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i, item)
		})
	}
	wg.Wait()
}
