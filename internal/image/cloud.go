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
	// checksumsTimeout limits the time for such a document.
	checksumsTimeout = time.Minute
)

// FindCloud returns the image of the catalogue that a source names, nil if it is not a name. The error says
// which names there are.
func (s *Sources) FindCloud(from source.Source) (*catalogue.Image, error) {
	if from.Kind != source.Catalogue {
		return nil, nil //nolint:nilnil // Nil is for sources that are not names.
	}
	found, err := s.catalogue.Find(from.Name, platform.Architecture)
	if err != nil {
		return nil, newError(ErrInvalid, "%w", err)
	}
	return &found, nil
}

// published is the checksum that an image must have according to its publisher.
type published struct {
	catalogue.Checksums

	digest string
	hash   hash.Hash // over what is sent
}

// copyCloud copies the image that a name of the catalogue stands for now. Whoever answers at the address
// of the checksums decides which image that is; the server of the image, or a mirror, does not.
func (s *Sources) copyCloud(ctx context.Context, a *attempt) error {
	found, err := s.FindCloud(a.ref.Source)
	if err != nil {
		return &contentError{err}
	}
	document, err := s.fetchChecksums(ctx, found.Checksums.URL, a.progress.ResetStallTimer)
	if err != nil {
		return egress.Errorf("its checksum at %s: %s", found.Checksums.URL, egress.Explain(err))
	}
	digest, err := found.Checksums.Find(document, found.File())
	if err != nil {
		return unusableContent("its checksum: %w", err)
	}
	if wanted := a.ref.Checksum; found.Checksums.Algorithm == catalogue.SHA256 && wanted != "" && wanted != digestPrefix+digest {
		return unusableContent("it stands for %s%s now, and %s was asked for", digestPrefix, digest, wanted)
	}
	a.published = &published{found.Checksums, digest, found.Checksums.New()}
	return a.copy.FromWeb(ctx, s.client, found.URL)
}

// fetchChecksums returns a document with checksums.
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

// receiveBytes hashes what is sent. A nil published has nothing to compare.
func (p *published) receiveBytes(sent []byte) {
	if p != nil {
		_, _ = p.hash.Write(sent) // never fails
	}
}

// checkSums compares the bytes that were sent with the checksum of the publisher.
func (p *published) checkSums() error {
	if p == nil {
		return nil
	}
	if got := hex.EncodeToString(p.hash.Sum(nil)); got != p.digest {
		return unusableContent("its %s is %s, and %s has %s", p.Algorithm, got, p.URL, p.digest)
	}
	return nil
}

// versionFor adds what was published to a server's version of its content: content that does not match is
// fetched again once another checksum is published.
func (p *published) versionFor(ofContent string) string {
	if p == nil || ofContent == "" {
		return ofContent
	}
	return ofContent + " " + p.digest
}
