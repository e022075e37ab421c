// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/hex"
	"hash"
	"io"
	"net/http"
	"time"

	"cloudnative.tw/drover/internal/image/catalogue"
	"cloudnative.tw/drover/internal/image/egress"
	"cloudnative.tw/drover/internal/image/source"
)

const (
	// maxChecksums is how many bytes a document with checksums may have.
	maxChecksums = 1 << 20
	// checksumsTimeout limits the time to fetch a document with checksums.
	checksumsTimeout = time.Minute
)

// FindCloud returns the image of the catalogue for a source, nil for other kinds of sources. The error for an
// unknown name lists the known names.
func (s *Sources) FindCloud(from source.Source) (*catalogue.Image, error) {
	if from.Kind != source.Catalogue {
		return nil, nil //nolint:nilnil // The source is not a name of the catalogue.
	}
	found, err := s.catalogue.Find(from.Name, platform.Architecture)
	if err != nil {
		return nil, newError(ErrInvalid, "%w", err)
	}
	return &found, nil
}

// published is the checksum of an image from its publisher.
type published struct {
	catalogue.Checksums

	digest string
	hash   hash.Hash // of the received bytes
}

// copyCloud copies the image to which a name of the catalogue leads now. Only the server of the checksums
// decides which image that is. The server of the image, such as a mirror, need not be trusted.
func (s *Sources) copyCloud(ctx context.Context, a *attempt) error {
	found, err := s.FindCloud(a.ref.Source)
	if err != nil {
		return &contentError{err}
	}
	document, err := s.fetchChecksums(ctx, found.Checksums.URL, a.progress.ResetStallTimer)
	if err != nil {
		return egress.Errorf("fetching its checksum from %s: %s", found.Checksums.URL, egress.Explain(err))
	}
	digest, err := found.Checksums.Find(document, found.File())
	if err != nil {
		return unusableContent("finding its checksum: %w", err)
	}
	if wanted := a.ref.Checksum; found.Checksums.Algorithm == catalogue.SHA256 && wanted != "" && wanted != digestPrefix+digest {
		return unusableContent("the name leads to the image with checksum %s%s now, and %s is requested", digestPrefix, digest, wanted)
	}
	a.published = &published{found.Checksums, digest, found.Checksums.New()}
	return a.copy.FromWeb(ctx, s.client, found.URL)
}

// fetchChecksums fetches a document with checksums.
func (s *Sources) fetchChecksums(ctx context.Context, url string, onData func()) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, checksumsTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Web(maxChecksums, onData).RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, egress.StatusError(response.StatusCode)
	}
	return io.ReadAll(response.Body)
}

// receiveBytes hashes received bytes. It does nothing for nil.
func (p *published) receiveBytes(received []byte) {
	if p != nil {
		_, _ = p.hash.Write(received) // never fails
	}
}

// checkSums fails if the received bytes do not have the publisher's checksum.
func (p *published) checkSums() error {
	if p == nil {
		return nil
	}
	if got := hex.EncodeToString(p.hash.Sum(nil)); got != p.digest {
		return unusableContent("the %s of the image is %s, and %s states %s", p.Algorithm, got, p.URL, p.digest)
	}
	return nil
}

// versionFor adds the published checksum to the server's version of its content. So rejected content is
// fetched again once another checksum is published.
func (p *published) versionFor(contentVersion string) string {
	if p == nil || contentVersion == "" {
		return contentVersion
	}
	return contentVersion + " " + p.digest
}
