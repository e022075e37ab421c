// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/driver/download"
)

// ensureImage reports whether a server has to wait for its image, and starts a pull
// if needed. A failed pull is reported once; the call after that starts a new one.
// A pull only pulls: the next Ensure does the rest.
func (d *Driver) ensureImage(ctx context.Context, spec driver.ServerSpec) (waits bool, err error) {
	image, policy := d.imageReference(spec), spec.Image.PullPolicy
	if policy == driver.PullNever {
		d.fetches.Keep(spec.UID)
		return false, d.requireImage(ctx, image)
	}
	key := fullReference(image)
	d.fetches.Keep(spec.UID, key)
	outcome, err := d.fetches.Outcome(spec.UID, key)
	switch {
	case err != nil:
		return false, err
	case outcome == download.Running:
		return true, nil
	case outcome == download.Fetched && policy == driver.PullAlways:
		return false, nil
	}
	if policy != driver.PullAlways {
		if present, err := d.hasImage(ctx, image); err != nil || present {
			return false, err
		}
	}
	d.fetches.Begin(ctx, spec, key, "pulling "+image, func(ctx context.Context, f *download.Fetch) error {
		err := d.pullImage(ctx, image, f)
		d.Log.V(1).Info("Pull ended", "image", image, "err", err)
		return err
	})
	return true, nil
}

func (d *Driver) requireImage(ctx context.Context, image string) error {
	present, err := d.hasImage(ctx, image)
	if err != nil || present {
		return err
	}
	return driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry,
		"image %s is not on the Docker host and spec.image.pullPolicy is Never: pull it there or change the policy", image))
}

func (d *Driver) hasImage(ctx context.Context, image string) (bool, error) {
	err := d.engine.Read(ctx, "inspect image "+image, func(ctx context.Context, c *client.Client) error {
		_, err := c.ImageInspect(ctx, image)
		return err
	})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// pullImage pulls one image and reports the progress.
func (d *Driver) pullImage(ctx context.Context, image string, f *download.Fetch) error {
	return d.engine.Change(ctx, "pull image "+image, func(ctx context.Context, c *client.Client) error {
		stream, err := c.ImagePull(ctx, image, client.ImagePullOptions{})
		if err != nil {
			return explainPull(err)
		}
		p := pullProgress{}
		for m, err := range stream.JSONMessages(ctx) {
			switch {
			case err != nil:
				return explainPull(err)
			case m.Error != nil:
				return explainPull(m.Error)
			}
			p.addMessage(m)
			f.Progress(p.progressText(image))
		}
		return ctx.Err()
	})
}

// Abandon implements driver.Fetcher.
func (d *Driver) Abandon(ctx context.Context, uid types.UID) error {
	return d.fetches.Abandon(ctx, uid)
}

// pullProgress sums up the progress of a pull, which is reported by layer.
type pullProgress map[string]layerProgress

type layerProgress struct {
	current, total int64
	complete       bool
}

func (p pullProgress) addMessage(m jsonstream.Message) {
	if m.ID == "" {
		return
	}
	now := p[m.ID]
	switch m.Status {
	case "Downloading":
		if m.Progress != nil && m.Progress.Total > 0 {
			now.current, now.total = m.Progress.Current, m.Progress.Total
		}
	case "Download complete", "Extracting", "Pull complete", "Already exists":
		now.current, now.complete = now.total, true
	}
	p[m.ID] = now
}

// progressText is for people, such as "pulling nginx: 34% (12.3/36.1 MB)". The size of a
// layer that has not begun is unknown, so the total can grow.
func (p pullProgress) progressText(image string) string {
	var current, total int64
	complete := true
	for _, l := range p {
		current += l.current
		total += l.total
		complete = complete && l.complete
	}
	switch {
	case total == 0:
		return "pulling " + image
	case complete:
		return fmt.Sprintf("pulling %s: unpacking %.1f MB", image, float64(total)/1e6)
	}
	return fmt.Sprintf("pulling %s: %d%% (%.1f/%.1f MB)", image, current*100/total, float64(current)/1e6, float64(total)/1e6)
}

// pullError is the cause of a failed pull in Drover's own words.
type pullError struct{ text string }

func (e pullError) Error() string { return e.text }

// pullFailures are the causes of a failed pull; the first match applies. The engine's
// own text is not passed on, because it repeats the registry's answer: a user who may
// name an image chooses the registry and, by that, where its redirects lead.
var pullFailures = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`(?i)toomanyrequests|too many requests|rate limit`), "too many requests"},
	{regexp.MustCompile(`(?i)no matching manifest|does not match the specified platform`), "the image is not there for this host's platform"},
	{regexp.MustCompile(`(?i)no space left on device`), "no space left on the engine's disk"},
	{regexp.MustCompile(`(?i)pull access denied`), "not found, or a login is needed"},
	{regexp.MustCompile(`(?i)unauthorized|authentication required`), "unauthorized"},
	{regexp.MustCompile(`(?i)\bdenied\b|forbidden`), "access denied"},
	{regexp.MustCompile(`(?i)not found|manifest unknown|name unknown|does not exist`), "not found"},
	{regexp.MustCompile(`(?i)no such host|server misbehaving|temporary failure in name resolution`), "name not resolved"},
	{regexp.MustCompile(`(?i)connection refused`), "connection refused"},
	{regexp.MustCompile(`(?i)connection reset`), "connection reset"},
	{regexp.MustCompile(`(?i)no route to host|network is unreachable`), "no route to the registry"},
	{regexp.MustCompile(`(?i)http response to https client`), "TLS: the registry does not speak it"},
	{regexp.MustCompile(`(?i)x509|tls:|certificate`), "TLS: the registry's certificate or handshake is not accepted"},
	{regexp.MustCompile(`(?i)timeout|deadline exceeded|request canceled`), "timeout"},
	{regexp.MustCompile(`(?i)unexpected EOF|\bEOF\b`), "the connection was cut"},
	{regexp.MustCompile(`(?i)digest|checksum|verification failed`), "it is not what its digest says"},
}

// explainPull leaves out what a registry answered. An error of the client itself, for
// example that the engine cannot be reached, is returned as it is.
func explainPull(err error) error {
	if engine.IsNetworkError(err) || engine.IsContextError(err) {
		return err
	}
	for _, f := range pullFailures {
		if f.pattern.MatchString(err.Error()) {
			return pullError{statusCodeText(err) + f.text}
		}
	}
	return pullError{statusCodeText(err) + "the engine's log has the cause"}
}

// statusCodeText is the status code of an answer, if it adds something to the fact that the
// pull failed.
func statusCodeText(err error) string {
	code := 0
	if message, is := errors.AsType[*jsonstream.Error](err); is {
		code = message.Code
	}
	for kind, c := range map[error]int{
		errdefs.ErrNotFound: http.StatusNotFound, errdefs.ErrUnauthenticated: http.StatusUnauthorized,
		errdefs.ErrPermissionDenied: http.StatusForbidden, errdefs.ErrInvalidArgument: http.StatusBadRequest,
	} {
		if errors.Is(err, kind) {
			code = c
		}
	}
	if code < 400 || code == http.StatusInternalServerError {
		return ""
	}
	return fmt.Sprintf("%d: ", code)
}
