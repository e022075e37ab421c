// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"cloudnative.tw/drover/test/assert"
)

// TestRejectionsEvictOldest checks that a new entry at the limit evicts the oldest only.
func TestRejectionsEvictOldest(t *testing.T) {
	t.Parallel()
	var r rejections
	start := time.Now()
	for n := range maxRejections + 1 {
		r.remember(strconv.Itoa(n), rejection{version: "1", at: start.Add(time.Duration(n) * time.Second), err: errors.New("no disk")})
	}
	now := start.Add(time.Hour)
	assert.ErrorIs(t, "the oldest is kept", r.findRejection("0", "1", 0, now), nil)
	for n := 1; n <= maxRejections; n++ {
		assert.Require(t, r.findRejection(strconv.Itoa(n), "1", 0, now) != nil, "entry %d is forgotten", n)
	}
}

// TestExplainRegistry checks that the words of a registry are not repeated.
func TestExplainRegistry(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	answer := &transport.Error{StatusCode: http.StatusUnauthorized, Errors: []transport.Diagnostic{{Code: secret, Message: secret, Detail: secret}}}
	assert.Equal(t, "it is explained as", explainError(fmt.Errorf("%s: %w", secret, answer)).Error(), "the server answered 401 Unauthorized")
}

// TestImageWithoutSpaceIsRemembered checks that an image that did not fit on the disk is fetched again
// once there may be space for it, and not before.
func TestImageWithoutSpaceIsRemembered(t *testing.T) {
	t.Parallel()
	var r rejections
	now := time.Now()
	r.remember("key", rejection{version: "1", at: now, err: errors.New("no space"), needs: 100})
	err := r.findRejection("key", "1", 99, now)
	assert.True(t, err != nil && err.Error() == "no space; it needs at least 100 bytes", "with too little space the image is refused by %v", err)
	for name, err := range map[string]error{"enough space": r.findRejection("key", "1", 100, now), "another version": r.findRejection("key", "2", 0, now)} {
		assert.ErrorIs(t, "with "+name+" the image is refused by", err, nil)
	}
}
