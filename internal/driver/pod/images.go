// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

const (
	// resolveWithin bounds the time that a call waits for registries. Nodes resolve the tags that
	// were not resolved by then.
	resolveWithin = 4 * time.Second
	// silentFor is how long a registry is not asked again for images of a repository of which it did
	// not answer in time, so that it delays few servers. It may be fast with others, such as those of
	// which it is no proxy.
	silentFor = 30 * time.Second
	// maxSilent bounds how many such repositories are remembered.
	maxSilent = 1000
	// maxAsked bounds the questions of a call at a time.
	maxAsked = 4
)

// resolver finds the digests of tags.
type resolver struct {
	// Resolve returns the digest of an image. Its errors are for users.
	Resolve func(ctx context.Context, source string) (digest string, err error)
	Clock   clock.PassiveClock

	underway singleflight.Group
	silent   driver.SyncMap[string, time.Time] // by repository, until when
}

// resolve returns what the tags of images are resolved to, in their order.
func (r *resolver) resolve(ctx context.Context, sources []string) []driver.ResolvedImage {
	ctx, cancel := context.WithTimeout(ctx, resolveWithin)
	defer cancel()
	all := make([]driver.ResolvedImage, len(sources))
	var asked errgroup.Group
	asked.SetLimit(maxAsked)
	for n, source := range sources {
		asked.Go(func() error {
			digest, err := r.ask(ctx, source)
			all[n] = driver.ResolvedImage{Source: source, Digest: digest, Unproven: digest != ""}
			if err != nil {
				all[n].Message = err.Error()
			}
			return nil
		})
	}
	_ = asked.Wait() // failures are in the messages
	return all
}

var errSilent = errors.New("the registry did not answer in time")

// ask asks for the digest of an image. Calls that need the same share a question.
func (r *resolver) ask(ctx context.Context, source string) (string, error) {
	repository := objects.RepositoryOf(source)
	if until, ok := r.silent.Load(repository); ok && r.Clock.Now().Before(until) {
		return "", errSilent
	}
	shared := r.underway.DoChan(source, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveWithin)
		defer cancel()
		digest, err := r.Resolve(ctx, source)
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

func (r *resolver) markSilent(repository string) {
	now := r.Clock.Now()
	r.silent.DeleteFunc(func(_ string, until time.Time) bool { return !now.Before(until) })
	if r.silent.Len() < maxSilent {
		r.silent.Store(repository, now.Add(silentFor))
	}
}

// resolveImages returns the digests by which the next pod names images that the spec names by tag. A
// tag keeps the digest of the pod before, and stays a tag if no machine could be started with the
// digest. With pull policy Always, the tags of an ephemeral server are resolved again.
func (c *convergence) resolveImages(ctx context.Context) []driver.ResolvedImage {
	known := c.knownImages()
	var all []driver.ResolvedImage
	var unknown []string
	for _, source := range c.driver.Objects.TaggedImages(c.spec) {
		if found := objects.FindResolved(known, source); found != nil && (found.Digest != "" || found.Unproven) {
			all = append(all, *found)
		} else {
			unknown = append(unknown, source)
		}
	}
	if len(unknown) == 0 || c.driver.images.Resolve == nil {
		return all
	}
	return append(all, c.driver.images.resolve(ctx, unknown)...)
}

// knownImages returns the images of the pod before that the next one keeps. A pod that is lost may have
// run with them.
func (c *convergence) knownImages() (known []driver.ResolvedImage) {
	r := c.recorded(objects.KindPod, c.Key.Name)
	if r == nil {
		return nil
	}
	isLatest := c.spec.Ephemeral && c.spec.Image.PullPolicy == driver.PullAlways
	for _, i := range r.Images {
		if i.Digest != "" && isLatest {
			continue
		}
		if i.Digest != "" && r.UID != "" && !r.Ended {
			i.Unproven = false
		}
		known = append(known, i)
	}
	return known
}

// endedImages returns what the record of the pod, which has ended, has of its images. Nodes that got an
// image from a file or a mirror may have it by its tag alone, so a digest from which no container was
// created there is dropped, unless the server has run with it before.
func (c *convergence) endedImages(images []driver.ResolvedImage) []driver.ResolvedImage {
	kept := slices.Clone(images)
	isUsed, hasFailed := c.ImageUse()
	for n := range kept {
		switch i := &kept[n]; {
		case !i.Unproven || i.Digest == "":
		case isUsed:
			i.Unproven = false
		case hasFailed:
			i.Digest, i.Message = "", "no machine was started with its digest "+i.Digest
		}
	}
	return kept
}

// hasResolved reports whether the record of the next pod is for the images of the spec, which may
// have changed since.
func (c *convergence) hasResolved(recorded *driver.Object) bool {
	if len(recorded.Images) == 0 || c.driver.images.Resolve == nil {
		return true
	}
	for _, source := range c.driver.Objects.TaggedImages(c.spec) {
		if objects.FindResolved(recorded.Images, source) == nil {
			return false
		}
	}
	return true
}
