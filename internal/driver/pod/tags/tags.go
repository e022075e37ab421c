// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tags resolves the tags of images to digests, by asking registries.
//
// Start with Resolver.
package tags

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/image/source"
)

const (
	// resolveWithin limits how long a call waits for registries. Nodes resolve the tags that were not
	// resolved by then.
	resolveWithin = 4 * time.Second
	// silentFor is how long a repository is skipped after its registry did not answer in time, so that it
	// delays few servers. The registry may answer fast about other repositories, for example those that it
	// does not proxy.
	silentFor = 30 * time.Second
	// maxSilent limits how many such repositories are remembered.
	maxSilent = 1000
	// maxAsked limits the concurrent questions of a call.
	maxAsked = 4
)

// Resolver finds the digests of tags.
type Resolver struct {
	// Resolve returns the digest of an image. Its errors are shown to users.
	Resolve func(ctx context.Context, from source.Source) (digest string, err error)
	Clock   clock.PassiveClock

	underway singleflight.Group
	silent   driver.SyncMap[string, time.Time] // by repository, until when
}

// Digests returns the results of resolving the tags of images, in the order of sources.
func (r *Resolver) Digests(ctx context.Context, sources []source.Source) []driver.ResolvedImage {
	ctx, cancel := context.WithTimeout(ctx, resolveWithin)
	defer cancel()
	all, _ := kit.Each(ctx, maxAsked, sources, func(from source.Source) (driver.ResolvedImage, error) {
		digest, err := r.resolveTag(ctx, from)
		found := driver.ResolvedImage{Source: from.Text(), Digest: digest, Unproven: digest != ""}
		if err != nil {
			found.Message = err.Error()
		}
		return found, nil
	})
	return all
}

var errSilent = errors.New("the registry did not answer in time")

// resolveTag returns the digest of an image. Concurrent calls for the same image share one question.
func (r *Resolver) resolveTag(ctx context.Context, from source.Source) (string, error) {
	repository := objects.RepositoryOf(from)
	if until, ok := r.silent.Load(repository); ok && r.Clock.Now().Before(until) {
		return "", errSilent
	}
	shared := r.underway.DoChan(from.Text(), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveWithin)
		defer cancel()
		digest, err := r.Resolve(ctx, from)
		if ctx.Err() != nil {
			r.markSilent(repository)
			err = errSilent
		}
		return digest, err
	})
	select {
	case result := <-shared:
		digest, _ := result.Val.(string)
		return digest, result.Err
	case <-ctx.Done():
		return "", errSilent
	}
}

// markSilent makes the next calls skip a repository for a while.
func (r *Resolver) markSilent(repository string) {
	now := r.Clock.Now()
	r.silent.DeleteFunc(func(_ string, until time.Time) bool { return !now.Before(until) })
	if r.silent.Len() < maxSilent {
		r.silent.Store(repository, now.Add(silentFor))
	}
}
